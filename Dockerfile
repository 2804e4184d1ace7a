# One image for both programs; the command picks which:
#   docker run IMAGE laredo-fanout --config /etc/laredo/fanout.conf
#   docker run IMAGE laredo-snapshotter --config /etc/laredo/snapshotter.conf
FROM python:3.12-slim AS build

WORKDIR /src
# What compiles the scan of the stream's rows; the image itself needs no compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
RUN python -m venv /opt/laredo
# Dependencies change less often than code: their layer is kept while only code changes.
COPY pyproject.toml ./
RUN /opt/laredo/bin/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print('\n'.join(p['dependencies'] + p['optional-dependencies']['aws']))" > requirements.txt \
    && /opt/laredo/bin/pip install --no-cache-dir --requirement requirements.txt
COPY README.md ./
COPY laredo_model laredo_model
COPY laredo_archive laredo_archive
COPY laredo_fanout laredo_fanout
COPY laredo_snapshotter laredo_snapshotter
RUN /opt/laredo/bin/pip install --no-cache-dir --no-deps .

FROM python:3.12-slim

RUN useradd --system --uid 10001 --home-dir /var/lib/laredo --create-home laredo
COPY --from=build /opt/laredo /opt/laredo
ENV PATH=/opt/laredo/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# A container has a network of its own: without this both programs would listen on its 127.0.0.1,
# where no port mapping and no probe reaches them. A host in the configuration wins over it. Whoever
# reaches the container's ports is asked for a token only if one is configured.
ENV LAREDO_DEFAULT_HOST=0.0.0.0
USER laredo
WORKDIR /var/lib/laredo
VOLUME /var/lib/laredo
# 4002 gRPC and 8081 HTTP of laredo-fanout, 8082 HTTP of laredo-snapshotter.
EXPOSE 4002 8081 8082
STOPSIGNAL SIGTERM
CMD ["laredo-snapshotter"]
