"""The OpenAPI 3.1 document; the table of operations is in ``api.routes``."""
