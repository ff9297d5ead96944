// The picture of the flow: boxes and lines, drawn once; only what changes is patched. All text is text.
const { h } = Vue;

function curve(a, b, width, height) {
  const y1 = a.y + height / 2;
  const y2 = b.y + height / 2;
  if (b.x > a.x) {
    const x1 = a.x + width;
    const bend = Math.max(30, (b.x - x1) / 2);
    return `M${x1},${y1} C${x1 + bend},${y1} ${b.x - bend},${y2} ${b.x},${y2}`;
  }
  // Back to the left: around, below both.
  const x1 = a.x + width / 2;
  const x2 = b.x + width / 2;
  const low = Math.max(a.y, b.y) + height + 12;
  return `M${x1},${a.y + height} C${x1},${low} ${x2},${low} ${x2},${b.y + height}`;
}

function shortened(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

export default {
  props: { graph: Object, now: Object },
  render() {
    const { nodes, edges, width, height, box } = this.graph;
    const now = this.now || {};
    const at = Object.fromEntries(nodes.map((node) => [node.id, node]));
    const lines = edges.map((edge) => {
      const rate = (now.edges || {})[edge.id] || {};
      const [a, b] = [at[edge.source], at[edge.target]];
      const middle = [(a.x + box[0] + b.x) / 2, (a.y + b.y + box[1]) / 2 - 4];
      return h("g", { key: edge.id }, [
        h("path", {
          class: ["edge", rate.flows ? "flows" : ""],
          d: curve(a, b, box[0], box[1]),
          "stroke-width": rate.width || 1.2,
        }),
        b.x > a.x && rate.text
          ? h("text", { class: "edge-rate", x: middle[0], y: middle[1], "text-anchor": "middle" }, rate.text)
          : null,
      ]);
    });
    const boxes = nodes.map((node) => {
      const state = (now.nodes || {})[node.id] || {};
      return h("a", { key: node.id, href: node.link, "aria-label": `${node.kind} ${node.name}: ${state.text || ""} ${state.health || ""}` }, [
        h("title", {}, `${node.kind} ${node.name}${state.title ? "\n" + state.title : ""}`),
        h("rect", {
          class: "box",
          x: node.x,
          y: node.y,
          width: box[0],
          height: box[1],
          rx: { stream: 23, table: 4, pipeline: 8, service: 8 }[node.kind] || 8,
        }),
        h("circle", { class: ["dot", `hr-${state.health || "off"}`], cx: node.x + 16, cy: node.y + 18, r: 4.5 }),
        h("text", { class: "name", x: node.x + 27, y: node.y + 22 }, shortened(node.name, 20)),
        h("text", { class: "said", x: node.x + 27, y: node.y + 37 }, shortened(state.text || "", 24)),
        h("text", { class: "kind", x: node.x + box[0] - 12, y: node.y + 37, "text-anchor": "end" }, node.kind),
      ]);
    });
    return h("div", { class: "hr-flow" }, [
      h("svg", { style: `max-width: ${width}px; min-width: ${Math.round(width * 0.65)}px`, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The flow of data" }, [
        ...lines,
        ...boxes,
      ]),
    ]);
  },
};
