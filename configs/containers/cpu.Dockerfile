# specbench on a CPU, with the shipped pair as what it does by itself. From the root of the repository:
#   docker build -f configs/containers/cpu.Dockerfile -t specbench .
#   docker run --rm -v "$PWD/results:/work/results" --user "$(id -u):$(id -g)" specbench
#   docker run --rm specbench run --target owner/model --draft owner/small --k 4
FROM python:3.12-slim-bookworm

# the compiled tier builds its kernels with a C++ compiler
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY specbench specbench
COPY configs configs
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir --constraint constraints.txt ".[gguf,peft,quant]"

# whoever it runs as has a home, where models and compiled code are kept: mount it to keep them
RUN useradd --no-create-home --home-dir /work --uid 1000 specbench && install -d -m 1777 /work
ENV HOME=/work USER=specbench
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["specbench"]
CMD ["run"]
