# specbench on NVIDIA GPUs, with the shipped pair as what it does by itself; the host has a driver and the container toolkit.
# From the root of the repository:
#   docker build -f configs/containers/cuda.Dockerfile -t specbench-cuda .
#   docker run --rm --gpus all -v "$PWD/results:/work/results" --user "$(id -u):$(id -g)" specbench-cuda
# Nothing of it was ever run on a GPU.
FROM python:3.12-slim-bookworm

# torch brings the libraries of CUDA; Triton builds its launchers with a C compiler
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY specbench specbench
COPY configs configs
RUN pip install --no-cache-dir --constraint constraints.txt ".[gguf,gpu,peft,quant]"

# whoever it runs as has a home, where models and compiled code are kept: mount it to keep them
RUN useradd --no-create-home --home-dir /work --uid 1000 specbench && install -d -m 1777 /work
ENV HOME=/work USER=specbench NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["specbench"]
CMD ["run"]
