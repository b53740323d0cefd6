# The production image, and with `--target standalone` one that brings its own Postgres.
#
#   docker build -t idemproxy .
#   docker build -t idemproxy:standalone --target standalone .
#
# Behind a mirror: --build-arg BASE=mirror.example/python:3.14.6-slim-trixie --build-arg PIP_INDEX_URL=https://…/simple
# Any glibc base with Python 3.11 or newer and its venv module will do; amd64 and arm64 need no compiler.
ARG BASE=docker.io/library/python:3.14.6-slim-trixie

# --- build: everything that is not needed to run stays here -----------------------------------------------------------
FROM ${BASE} AS build
ARG PIP_INDEX_URL=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/ requirements/
# Only what the lock files name, only if its hash is right, never compiled here.
RUN python3 -m venv tools \
 && tools/bin/pip install --quiet --require-hashes --only-binary :all: -r requirements/build.txt \
 && python3 -m venv --without-pip /opt/idemproxy \
 && tools/bin/pip --python /opt/idemproxy/bin/python install --quiet --require-hashes --no-deps --only-binary :all: \
    -r requirements/default.txt
COPY pyproject.toml README.md LICENSE ./
COPY migrations/ migrations/
COPY idemproxy/ idemproxy/
RUN tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheels . \
 && tools/bin/pip --python /opt/idemproxy/bin/python install --quiet --no-deps --no-index wheels/*.whl

FROM build AS build-standalone
RUN tools/bin/pip --python /opt/idemproxy/bin/python install --quiet --require-hashes --no-deps --only-binary :all: \
    -r requirements/standalone.txt

# --- what both images have in common ----------------------------------------------------------------------------------
FROM ${BASE} AS runtime
# A name for the number: PostgreSQL's initdb asks for one. Kubernetes and compose use the number.
RUN groupadd --gid 65532 idemproxy \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /nonexistent --no-log-init --shell /usr/sbin/nologin \
    idemproxy
# In a container, loopback would be nobody: the ports are published, or not, by whoever runs it.
ENV IDEMPROXY_LISTEN=0.0.0.0:8080 \
    IDEMPROXY_ADMIN_LISTEN=0.0.0.0:8081 \
    PATH=/opt/idemproxy/bin:$PATH
EXPOSE 8080 8081
# SIGTERM drains: not ready, stop accepting, finish and settle what is under way.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/opt/idemproxy/bin/idemproxy", "healthcheck"]
ENTRYPOINT ["/opt/idemproxy/bin/idemproxy"]
CMD ["run"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="idemproxy" \
      org.opencontainers.image.description="An idempotency reverse proxy: retries of a write are executed once and answered byte for byte." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# --- standalone: with an embedded Postgres, for a single instance -----------------------------------------------------
FROM runtime AS standalone
COPY --from=build-standalone /opt/idemproxy /opt/idemproxy
# Each module that a start imports is compiled now: on a read-only root filesystem it could never be later.
RUN install -d -o 65532 -g 65532 -m 0700 /var/lib/idemproxy \
 && python -c "import idemproxy.cli, idemproxy.healthcheck, idemproxy.demo.orders"
# The only place that can be written serves for temporary files too.
ENV IDEMPROXY_DATA_DIR=/var/lib/idemproxy TMPDIR=/var/lib/idemproxy PYTHONDONTWRITEBYTECODE=1
VOLUME /var/lib/idemproxy
USER 65532:65532

# --- default: the store is a Postgres of yours ------------------------------------------------------------------------
FROM runtime AS default
COPY --from=build /opt/idemproxy /opt/idemproxy
RUN python -c "import idemproxy.cli, idemproxy.healthcheck, idemproxy.demo.orders"
ENV PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
