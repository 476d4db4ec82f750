"""What is sent to the Hub and what is checked there."""
