"""06-ch: CH-benCHmark's queries beside DataFusion over Arrow memory."""
from .common import farhold, write


def ch(args):
    result = farhold("bench", "--json", "ch", "--warehouses", args.warehouses, "--runs", args.runs, "--against-arrow")
    lines = [f"{args.warehouses} warehouses, no writers, median of {args.runs} interleaved runs, milliseconds through the PostgreSQL protocol.", "",
             "| query | Farhold | DataFusion over Arrow memory | ratio |", "|---|---|---|---|"]
    lines += [f"| {q['query']} | {q['ms']:.1f} | {q['arrow_ms']:.1f} | {q['ms'] / q['arrow_ms']:.2f} |" for q in result["queries"]]
    ours, arrow = (sum(q[k] for q in result["queries"]) for k in ("ms", "arrow_ms"))
    lines.append(f"| all | {ours:.0f} | {arrow:.0f} | {ours / arrow:.2f} (wanted: at most 1.5) |")
    write("06-ch", "CH-benCHmark's 22 queries", {"result": result, "ratio": ours / arrow}, lines)
