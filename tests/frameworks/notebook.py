"""A notebook whose kernel runs under the library: the report stands in it, and the magic answers."""

import nbclient
import nbformat

cells = [
    "import torch, vramshim\n%load_ext vramshim",
    "held = torch.empty(1 << 28, dtype=torch.uint8, device='cuda')\nassert vramshim.mark('held')",
    "vramshim.report()",
    "%vramshim why",
    "%vramshim report",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
_, _, report, why, page = [cell.outputs for cell in notebook.cells]
for shown in (report, page):
    html = shown[0]["data"]["text/html"]
    assert html.startswith('<iframe srcdoc="&lt;!doctype html') and "held" in html, html[:200]
assert "No request failed" in why[0]["text"] and "256.0 MiB" in why[0]["text"], why
