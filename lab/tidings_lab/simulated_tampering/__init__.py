"""What may happen to the folder of a broker that has ended, and to the files of one that serves."""
