"""Posts what happens to a job to a webhook, as {"text": "..."}.

    muster run --on-event 'python3 examples/webhook.py https://chat.example/hook' train.py

muster runs it for each event, with one JSON document on stdin; docs/formats.md has its
fields. With --first only the host with group rank 0 posts.
"""

import json
import sys
import urllib.request

first = sys.argv[1] == "--first"
url = sys.argv[-1]
event = json.load(sys.stdin)
if first and event["group_rank"] > 0:
    sys.exit()
text = f"{event['run_id']} on {event['host']}: {event['event']}"
if "outcome" in event:
    text += f" ({event['outcome']})"
if "cause" in event:
    text += f": {event['cause']}"
request = urllib.request.Request(url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
urllib.request.urlopen(request, timeout=10).close()
