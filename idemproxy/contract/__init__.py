"""The contract: an OpenAPI document whose operations say what may be retried, and how."""
