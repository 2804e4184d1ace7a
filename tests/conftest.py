pytest_plugins = ["tests.fix_postgres"]
