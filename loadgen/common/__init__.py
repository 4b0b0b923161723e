"""What every room needs: errors, defaults, secrets, timers, child processes."""
