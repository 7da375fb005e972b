# kerasdist in a container. docs/docker.md explains it.
#
#   docker build --tag kerasdist .                            # CPU
#   docker build --tag kerasdist --build-arg EXTRAS=cuda .    # NVIDIA GPUs
#   docker run --rm kerasdist doctor
#
# GPUs need no other base: pip installs CUDA and cuDNN for TensorFlow. If yours must come from NVIDIA, add
# --build-arg BASE=nvidia/cuda:12.6.3-base-ubuntu24.04 (any 12.x from 12.5 on; it must have Python 3.11 to 3.13).
ARG BASE=python:3.11-slim
# hadolint ignore=DL3006
FROM ${BASE}
ARG EXTRAS=

# For a base without Python. Its versions cannot be pinned here, because they are the base's.
# hadolint ignore=DL3008
RUN if ! python3 -c 'import ensurepip'; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends python3-venv \
        && rm -rf /var/lib/apt/lists/*; \
    fi

COPY pyproject.toml hatch_build.py README.md LICENSE /source/
COPY kerasdist /source/kerasdist
COPY recipes /source/recipes
COPY templates /source/templates
RUN python3 -m venv /opt/kerasdist \
    && /opt/kerasdist/bin/python -m pip install --no-cache-dir "/source${EXTRAS:+[$EXTRAS]}"

# Any user may write to /data, for `docker run --user`. It is the home folder, where data sets are downloaded to.
RUN useradd --no-log-init --uid 10001 --home-dir /data --create-home kerasdist && chmod 1777 /data
# Without the capability "compute", NVIDIA's runtime mounts no CUDA driver.
ENV PATH=/opt/kerasdist/bin:$PATH \
    HOME=/data \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
WORKDIR /data
ENTRYPOINT ["kerasdist"]
CMD ["--help"]
