"""What every command that is sent with a key shares, whatever room carries it out."""
