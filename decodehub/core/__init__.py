"""The ground floor: bare names, records, files, jobs, provenance. Imports nothing else of ours."""
