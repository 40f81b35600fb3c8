"""Topics to files and back: CSV and JSON with what every installation has, Parquet with pyarrow."""
