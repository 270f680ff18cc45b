"""Checks manifests with the schemas of the Prometheus operator, which a package of PyPI has as models."""

import jsonschema
from cloudcoil.models.prometheus_operator import v1

KINDS = {"ServiceMonitor": v1.ServiceMonitor, "PrometheusRule": v1.PrometheusRule}


def strict(schema):
    """No field that the schema does not know. The operator's API server would drop such a field without a word."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema["additionalProperties"] = False
        for part in schema.values():
            strict(part)
    elif isinstance(schema, list):
        for part in schema:
            strict(part)
    return schema


def problems(document):
    schema = strict(KINDS[document["kind"]].model_json_schema(by_alias=True))
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{list(one.absolute_path)}: {one.message}" for one in validator.iter_errors(document)]
