# docker build -t evaljournal . && docker run --rm -v "$PWD/runs:/evals/runs" evaljournal
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir /src && cp -r /src/examples /examples && rm -rf /src \
    && useradd --create-home evaljournal && install -d -o evaljournal /evals /evals/runs
USER evaljournal
WORKDIR /evals
ENTRYPOINT ["evaljournal"]
CMD ["run", "/examples/quickstart.py"]
