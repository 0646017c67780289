"""LangGraph with LangChain's OpenAI model: a graph in which a writer and a critic take turns over one history.

python langgraph_graph.py
"""

import json
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

model = ChatOpenAI(model="gpt-5", max_tokens=12, logprobs=True, use_responses_api=False)


def write(state):
    return {"messages": [model.invoke(state["messages"])]}


def criticise(state):
    return {"messages": [HumanMessage("Say it better.")]}


def go_on(state):
    return "criticise" if sum(isinstance(one, AIMessage) for one in state["messages"]) < 3 else END


graph = StateGraph(MessagesState)
graph.add_node("write", write)
graph.add_node("criticise", criticise)
graph.add_edge(START, "write")
graph.add_conditional_edges("write", go_on, ["criticise", END])
graph.add_edge("criticise", "write")
end = graph.compile().invoke({"messages": [HumanMessage("What is 2+3?")]})
told = [
    {
        "text": one.content,
        "logprobs": [token["logprob"] for token in one.response_metadata["logprobs"]["content"]],
    }
    for one in end["messages"]
    if isinstance(one, AIMessage)
]
assert len(told) == 3

Path("told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
