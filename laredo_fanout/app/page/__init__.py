"""The server's status page: what it shows, and the lag's last hour."""
