"""SQL over datasets: `Client.query`, `Client.export_query`, and `DispatchTask.query` for the code of tasks."""

from ._models import QueryBatch, QueryColumn, QueryExport, QueryResult

__all__ = ["QueryBatch", "QueryColumn", "QueryExport", "QueryResult"]
