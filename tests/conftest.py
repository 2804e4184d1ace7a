import os

# Tests start programs while gRPC clients run in their own process: gRPC's handlers in the
# forked child, which is about to become another program, can end it before it does.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

pytest_plugins = ["tests.fix_postgres", "tests.fix_ingest", "tests.fix_spark", "tests.fix_aws"]
