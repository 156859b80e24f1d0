"""The words about a dataset: `<task>.md` is prose, all numbers, tables and YAML are generated from `stats.json`."""
