// The lines of the record viewer. A plain table of text: hundreds of cells change each second.
export default {
  template: `
    <div class="hr-lines">
      <table>
        <thead><tr><th>Record</th><th>Time, UTC</th><th>Key</th><th>Value</th><th class="right">Size</th></tr></thead>
        <tbody>
          <tr v-for="row in rows" :key="row[0]" :class="{chosen: row[0] === chosen}" @click="$emit('choose', row[0])">
            <td><span role="button" tabindex="0" @keydown.enter="$emit('choose', row[0])">{{ row[0] }}</span></td>
            <td>{{ row[1] }}</td>
            <td class="hr-mono">{{ row[2] }}</td>
            <td class="hr-mono">{{ row[3] }}</td>
            <td class="right">{{ row[4] }}</td>
          </tr>
        </tbody>
      </table>
      <div v-if="!rows.length" class="hr-note">{{ empty }}</div>
    </div>
  `,
  props: { rows: Array, chosen: String, empty: String },
  emits: ["choose"],
};
