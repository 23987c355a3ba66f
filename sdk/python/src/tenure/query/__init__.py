"""SQL over datasets: `Client.query`, `Client.export_query`, and `DispatchTask.query` for the code of tasks."""

from ._models import QueryColumn, QueryExport, QueryResult

__all__ = ["QueryColumn", "QueryExport", "QueryResult"]
