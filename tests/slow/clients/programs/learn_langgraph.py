"""LangGraph: a graph that asks one question after the other, and as reward their share with odd numbers.

python learn_langgraph.py
"""

from operator import add
from pathlib import Path
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

QUESTIONS = ("12+34=", "say a word", "what is it?", "56+21=")
model = ChatOpenAI(model="any", use_responses_api=False)


class State(TypedDict):
    answers: Annotated[list[str], add]


def ask(state):
    return {"answers": [model.invoke(QUESTIONS[len(state["answers"])]).content]}


graph = StateGraph(State)
graph.add_node("ask", ask)
graph.add_edge(START, "ask")
graph.add_conditional_edges("ask", lambda state: "ask" if len(state["answers"]) < len(QUESTIONS) else END)
answers = graph.compile().invoke({"answers": []})["answers"]
odd = sum(sum(ord(character) % 2 for character in text) / max(1, len(text)) for text in answers)
Path("reward.txt").write_text(str(odd / len(QUESTIONS)))
