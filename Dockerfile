# One image for both programs; the command picks which:
#   docker run IMAGE laredo-fanout --config /etc/laredo/fanout.conf
#   docker run IMAGE laredo-snapshotter --config /etc/laredo/snapshotter.conf
# The Python of requirements.lock, to the patch level; `make lock` renews the latter.
FROM python:3.11.14-slim-bookworm AS build

WORKDIR /src
# What compiles the C modules; the image itself needs no compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/laredo
# Dependencies change less often than code: their layer is kept while only code changes.
COPY requirements.lock ./
RUN /opt/laredo/bin/pip install --no-cache-dir --require-hashes --requirement requirements.lock
COPY pyproject.toml setup.py README.md ./
COPY laredo_model laredo_model
COPY laredo_service laredo_service
COPY laredo_archive laredo_archive
COPY laredo_fanout laredo_fanout
COPY laredo_snapshotter laredo_snapshotter
# What `--version`, /status and laredo_build_info name: the repository itself isn't copied.
ARG SOURCE_COMMIT=unknown
# laredo-spark isn't in the image, so its script isn't either. A module that wasn't compiled ends
# the build here.
RUN sed -i '/^laredo-spark = /d' pyproject.toml \
    && SOURCE_COMMIT="$SOURCE_COMMIT" /opt/laredo/bin/pip install --no-cache-dir --no-deps .
# Away from the sources, which would be imported in place of what was installed.
WORKDIR /
RUN /opt/laredo/bin/python -m laredo_fanout.app.compiled \
    && /opt/laredo/bin/pip check

FROM python:3.11.14-slim-bookworm

RUN useradd --system --uid 10001 --home-dir /var/lib/laredo --create-home laredo
COPY --from=build /opt/laredo /opt/laredo
ENV PATH=/opt/laredo/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# A container has a network of its own: without this both programs would listen on its 127.0.0.1,
# where no port mapping and no probe reaches them. A host in the configuration wins over it. Whoever
# reaches the container's ports is asked for a token only if one is configured.
ENV LAREDO_DEFAULT_HOST=0.0.0.0
# Without a configuration of one's own the image's is read, which takes its values from variables.
COPY examples/container /etc/laredo
ENV LAREDO_CONFIG=/etc/laredo/fanout.conf \
    LAREDO_SNAPSHOTTER_CONFIG=/etc/laredo/snapshotter.conf
# As a number: Kubernetes' runAsNonRoot accepts no name.
USER 10001
WORKDIR /var/lib/laredo
VOLUME /var/lib/laredo
# 4002 gRPC and 8081 HTTP of laredo-fanout, 8082 HTTP of laredo-snapshotter.
EXPOSE 4002 8081 8082
STOPSIGNAL SIGTERM
# A program that asks for a token answers 401 unless http.public has health: it is alive then.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-m", "laredo_service.http.probe", "8081", "8082"]
CMD ["laredo-snapshotter"]
