"""The data that a page of `report` embeds."""

import json
import re


def page_data(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.S)
    return json.loads(text)
