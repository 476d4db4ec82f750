"""The three boards: rows from records, comparison, pages."""
