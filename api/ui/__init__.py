"""The web page at ``/ui``: static files and the headers that they are served with."""
