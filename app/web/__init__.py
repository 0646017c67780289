"""The application in a browser: who may come in (``gate``), and the server (``server``, needs the extra ``serve``)."""
