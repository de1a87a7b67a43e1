from tests.own import own

__all__ = ["own"]
