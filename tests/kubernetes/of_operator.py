"""Checks manifests with the schemas of the Prometheus operator, which a package of PyPI has as models."""

import json

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


def check_that_mistakes_are_found(documents):
    """The schemas must refuse what the API server or the operator would refuse or drop."""
    monitor = next(one for one in documents if one["kind"] == "ServiceMonitor")
    rule = next(one for one in documents if one["kind"] == "PrometheusRule")
    mistakes = [
        (monitor, lambda spec: spec.pop("selector")),
        (monitor, lambda spec: spec.update(endpoint=[])),
        (monitor, lambda spec: spec["endpoints"][0].update(interval="15 s")),
        (monitor, lambda spec: spec["endpoints"][0].update(intervall="15s")),
        (monitor, lambda spec: spec["endpoints"][0]["authorization"]["credentials"].pop("key")),
        (rule, lambda spec: spec.update(group=[])),
        (rule, lambda spec: spec["groups"][0].pop("name")),
        (rule, lambda spec: spec["groups"][0]["rules"][0].pop("expr")),
        (rule, lambda spec: spec["groups"][0]["rules"][1].update({"for": "soon"})),
        (rule, lambda spec: spec["groups"][0]["rules"][1].update(fr="5m")),
    ]
    for number, (document, mistake) in enumerate(mistakes):
        broken = json.loads(json.dumps(document))
        mistake(broken["spec"])
        if not problems(broken):
            raise SystemExit(f"kubernetes: the operator's schema takes mistake {number} in a {document['kind']}")
