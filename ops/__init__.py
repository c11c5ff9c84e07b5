"""What the processes need from the machine: settings, logs, SQLite, Redis, supervision, deploy."""
