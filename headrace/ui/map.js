// The world on a canvas, and points on it. What comes from records is drawn as text or as a place, never as HTML.
const NORTH = 78, SOUTH = -56; // nobody pays by card beyond

// Miller's projection: no pole, and the middle latitudes not too large.
const miller = (latitude) => 1.25 * Math.log(Math.tan(Math.PI / 4 + (0.4 * latitude * Math.PI) / 180));
const TOP = miller(NORTH), BOTTOM = miller(SOUTH);
const RATIO = (TOP - BOTTOM) / (2 * Math.PI);
const GLOW_MS = 1500;
const isWay = (point) => point.fromLatitude !== undefined;

export default {
  template: `<div role="img" aria-label="Map"><canvas ref="land"></canvas><canvas ref="points"></canvas></div>`,
  props: { land: Array, keep: Number, fades: Boolean },
  created() {
    this.shown = []; // not reactive: drawn by us
    this.pointer = null;
  },
  mounted() {
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.$el);
    this.theme = new MutationObserver(() => this.fit());
    this.theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.$el.addEventListener("pointermove", (event) => this.point(event));
    this.$el.addEventListener("pointerleave", () => this.point(null));
    this.fit();
    this.$emit("ready");
  },
  beforeUnmount() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.observer.disconnect();
    this.theme.disconnect();
  },
  methods: {
    add(points, anew) {
      const since = performance.now();
      if (anew) this.shown = [];
      const first = this.shown.length === 0 || anew;
      points.forEach(([latitude, longitude, color, label, fromLatitude, fromLongitude], number) => {
        // Those of a second come one after the other, as they did; what was there before is just there.
        const delay = first ? -GLOW_MS : (900 * number) / points.length;
        this.shown.push({ latitude, longitude, color, label, fromLatitude, fromLongitude, since: since + delay });
      });
      // What has a way is rare and said for a reason: it stays until others of its kind come.
      const ways = this.shown.filter(isWay), plain = this.shown.filter((point) => !isWay(point));
      this.shown = [...plain.slice(-this.keep), ...ways.slice(-this.most(true))];
      this.$el.dataset.points = this.shown.length;
      this.$el.setAttribute("aria-label", `Map with ${this.shown.length} points`);
      this.draw();
    },
    most(way) {
      return way ? Math.max(10, Math.round(this.keep / 12)) : this.keep;
    },
    fit() {
      const width = this.$el.clientWidth, height = Math.round(width * RATIO);
      if (!width) return;
      this.$el.style.height = `${height}px`;
      for (const canvas of [this.$refs.land, this.$refs.points]) {
        canvas.width = width * devicePixelRatio;
        canvas.height = height * devicePixelRatio;
        canvas.getContext("2d").scale(devicePixelRatio, devicePixelRatio);
      }
      this.width = width;
      this.height = height;
      this.colors = getComputedStyle(this.$el);
      this.drawLand();
      this.draw();
    },
    place(latitude, longitude) {
      const y = (TOP - miller(Math.max(SOUTH, Math.min(NORTH, latitude)))) / (TOP - BOTTOM);
      return [((longitude + 180) / 360) * this.width, y * this.height];
    },
    drawLand() {
      const pen = this.$refs.land.getContext("2d");
      pen.clearRect(0, 0, this.width, this.height);
      pen.fillStyle = this.colors.getPropertyValue("--hr-ui-land");
      pen.strokeStyle = this.colors.getPropertyValue("--hr-ui-coast");
      pen.lineWidth = 0.8;
      pen.lineJoin = "round";
      pen.beginPath();
      for (const outline of this.land) {
        outline.forEach(([longitude, latitude], number) => {
          const [x, y] = this.place(latitude, longitude);
          number ? pen.lineTo(x, y) : pen.moveTo(x, y);
        });
        pen.closePath();
      }
      pen.fill("evenodd");
      pen.stroke();
    },
    draw() {
      cancelAnimationFrame(this.frame);
      clearTimeout(this.timer);
      if (!this.width) return;
      const now = performance.now(), pen = this.$refs.points.getContext("2d");
      pen.clearRect(0, 0, this.width, this.height);
      const size = Math.max(2, Math.min(4, this.width / 300));
      let moving = false, near = null, nearest = 12;
      const ways = this.shown.filter(isWay).length;
      this.shown.forEach((point, number) => {
        const age = now - point.since;
        if (age < 0) {
          moving = true;
          return;
        }
        const [x, y] = this.place(point.latitude, point.longitude);
        // The newest half is bright, the rest fades away.
        const newer = this.shown.length - number - (isWay(point) ? 0 : ways);
        const alpha = this.fades ? Math.max(0.12, Math.min(0.9, 1.5 * (1 - newer / this.most(isWay(point))))) : 0.85;
        pen.fillStyle = pen.strokeStyle = point.color;
        if (isWay(point)) this.drawWay(pen, point, x, y, alpha, Math.min(1, age / 700));
        pen.globalAlpha = alpha;
        pen.beginPath();
        pen.arc(x, y, isWay(point) ? size * 1.25 : size, 0, 7);
        pen.fill();
        if (this.fades && age < GLOW_MS) {
          moving = true;
          pen.globalAlpha = 0.6 * (1 - age / GLOW_MS);
          pen.lineWidth = 1.5;
          pen.beginPath();
          pen.arc(x, y, size + (10 * age) / GLOW_MS, 0, 7);
          pen.stroke();
        }
        const away = this.pointer ? Math.hypot(this.pointer[0] - x, this.pointer[1] - y) : nearest;
        if (away < nearest && point.label) [near, nearest] = [{ ...point, x, y }, away];
      });
      if (near) this.drawLabel(pen, near);
      if (moving && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
        this.frame = requestAnimationFrame(() => this.draw());
      } else if (moving) {
        this.timer = setTimeout(() => this.draw(), 500);
      }
    },
    drawWay(pen, point, x, y, alpha, share) {
      const [fromX, fromY] = this.place(point.fromLatitude, point.fromLongitude);
      const bend = Math.min(60, Math.hypot(x - fromX, y - fromY) / 4);
      const [midX, midY] = [(x + fromX) / 2, (y + fromY) / 2 - bend];
      pen.globalAlpha = alpha * 0.7;
      pen.lineWidth = 1.2;
      pen.beginPath();
      pen.moveTo(fromX, fromY);
      // The part of the curve up to `share`, by de Casteljau.
      const toMid = [fromX + (midX - fromX) * share, fromY + (midY - fromY) * share];
      const toEnd = [midX + (x - midX) * share, midY + (y - midY) * share];
      pen.quadraticCurveTo(...toMid, toMid[0] + (toEnd[0] - toMid[0]) * share, toMid[1] + (toEnd[1] - toMid[1]) * share);
      pen.stroke();
    },
    drawLabel(pen, { label, x, y, color }) {
      pen.globalAlpha = 1;
      pen.font = "12px system-ui, sans-serif";
      const width = pen.measureText(label).width + 14;
      const left = Math.max(2, Math.min(this.width - width - 2, x - width / 2)), top = y < 36 ? y + 10 : y - 32;
      pen.fillStyle = this.colors.getPropertyValue("--hr-card");
      pen.strokeStyle = color;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.roundRect(left, top, width, 22, 5);
      pen.fill();
      pen.stroke();
      pen.fillStyle = this.colors.getPropertyValue("--hr-ink");
      pen.fillText(label, left + 7, top + 15);
    },
    point(event) {
      const box = this.$el.getBoundingClientRect();
      this.pointer = event && [event.clientX - box.left, event.clientY - box.top];
      this.draw();
    },
  },
};
