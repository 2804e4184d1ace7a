"""Services that both programs run on: settings, HTTP, files, retries, systemd, the build."""
