"""What has to hold: the ledger, the checkers, and who shows them what happens."""
