# docker build -t evaljournal . && docker run --rm -v "$PWD/runs:/work/runs" evaljournal
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir /src && cp -r /src/examples /examples && rm -rf /src \
    && useradd --create-home evaljournal && install -d -o evaljournal /work /work/runs
USER evaljournal
WORKDIR /work
ENTRYPOINT ["evaljournal"]
CMD ["run", "/examples/quickstart.py"]
