// The picture of sites and links: drawn once; only what changes is patched. All text is text.
const { h } = Vue;
const HEALTHS = ["good", "warn", "bad", "off"];

function shortened(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

export default {
  props: { picture: Object, now: Object },
  render() {
    const { sites, ways, width, height, box } = this.picture;
    const now = this.now || {};
    const heads = HEALTHS.map((health) =>
      h("marker", { key: health, id: `hr-head-${health}`, class: `hr-${health}`, viewBox: "0 0 10 10", refX: 2, refY: 5, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, [
        h("path", { d: "M0,0 L10,5 L0,10 Z", fill: "currentColor" }),
      ])
    );
    const arrows = ways.map((way) => {
      const state = (now.ways || {})[way.id] || {};
      const health = state.health || "off";
      return h("a", { key: way.id, href: way.link, class: ["way", `hr-${health}`], "aria-label": `${way.words}: ${state.state || ""} ${state.text || ""}` }, [
        h("title", {}, `${way.words}: ${state.state || ""}${state.title ? "\n" + state.title : ""}`),
        h("path", { class: "near", d: way.path }),
        h("path", { class: ["edge", state.flows ? "flows" : ""], d: way.path, "stroke-width": state.width || 1.2, "marker-end": `url(#hr-head-${health})` }),
        h("text", { class: "edge-rate", x: way.x, y: way.y, "text-anchor": way.anchor }, state.text || ""),
      ]);
    });
    const boxes = sites.map((site) => {
      const state = (now.sites || {})[site.name] || {};
      return h("g", { key: site.name, class: "site", role: "img", "aria-label": `site ${site.name}: ${state.text || ""}` }, [
        h("title", {}, `site ${site.name}${state.title ? "\n" + state.title : ""}`),
        h("rect", { class: "box", x: site.x, y: site.y, width: box[0], height: box[1], rx: 8 }),
        h("circle", { class: ["dot", `hr-${state.health || "off"}`], cx: site.x + 16, cy: site.y + 18, r: 4.5 }),
        h("text", { class: "name", x: site.x + 27, y: site.y + 22 }, shortened(site.name, 16)),
        h("text", { class: "said", x: site.x + 27, y: site.y + 37 }, shortened(state.text || "", 17)),
        h("text", { class: "kind", x: site.x + box[0] - 10, y: site.y + 37, "text-anchor": "end" }, state.kind || ""),
      ]);
    });
    return h("div", { class: "hr-flow" }, [
      h("svg", { style: `max-width: ${width}px; min-width: ${Math.round(width * 0.65)}px`, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Sites and links" }, [
        h("defs", {}, heads),
        ...arrows,
        ...boxes,
      ]),
    ]);
  },
};
