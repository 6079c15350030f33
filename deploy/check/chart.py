"""Lints a chart, or renders it to standard output: chart.py lint CHART | render CHART RELEASE NAMESPACE [VALUES].

Helm itself is a Go library here, which its Python package loads.
"""

import sys

import helm_python as helm
import yaml


def lint(chart):
    found = helm.lint(chart)
    print(found)
    return found


def render(chart, release, namespace, values=None):
    given = {}
    if values is not None:
        with open(values, encoding="utf-8") as file:
            given = yaml.safe_load(file) or {}
    with helm.Chart.load(chart) as loaded:
        rendered = loaded.render(given, name=release, namespace=namespace)
    for name, text in sorted(rendered.items()):
        if not name.endswith(".txt") and text.strip():
            print(f"---\n# {name}\n{text}")


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    try:
        {"lint": lint, "render": render}[verb](*arguments)
    except helm.HelmError as error:
        sys.exit(str(error))
