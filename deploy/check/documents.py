"""Reads YAML on standard input and writes its documents as one JSON array; a duplicate key is an error."""

import json
import sys

import yaml


class Strict(yaml.SafeLoader):
    """Parses like Kubernetes, but rejects duplicate keys, of which the last would silently win."""


def mapping(loader, node):
    keys = [key.value for key, _ in node.value if key.value != "<<"]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: duplicate keys: {', '.join(map(str, twice))}")
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)

try:
    found = [document for document in yaml.load_all(sys.stdin, Strict) if document is not None]
except yaml.YAMLError as error:
    sys.exit(str(error))
json.dump(found, sys.stdout, default=str)
