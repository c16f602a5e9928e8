"""The path of a request: client body to backend body, and the plan for its answer."""
