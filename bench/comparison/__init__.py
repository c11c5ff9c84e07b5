"""This service beside other servers for the same model: what is warm, and when it stays so."""
