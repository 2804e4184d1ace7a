"""The output of the commands on a terminal; here its text, made safe to print."""
