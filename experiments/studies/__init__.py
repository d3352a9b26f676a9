"""What lies in a folder of studies: listed, shown, and cleaned."""
