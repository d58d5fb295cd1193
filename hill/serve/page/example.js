// Example texts: one that fits the taxonomy, or else one made of the names of its labels.

const TEXTS = [
  {
    words: ["quantum", "machine learning", "physics"],
    text:
      "Learning to predict the properties of molecules. We train a graph neural network on quantum chemical calculations of " +
      "two million small molecules. The network passes messages along chemical bonds and predicts energies and forces within " +
      "the error of the calculations themselves, several orders of magnitude faster. We study which atoms the network attends " +
      "to, and for which compounds its uncertainty can be trusted.",
  },
  {
    words: ["fracture", "diabetes", "respiratory"],
    text:
      "Chronic obstructive pulmonary disease with an acute infection of the lower respiratory tract, in a patient with type 2 " +
      "diabetes and kidney complications.",
  },
  {
    words: ["footwear", "kitchen", "electronics"],
    text:
      "Waterproof hiking boots for women, leather, with a cushioned sole and a wide toe box. Keeps feet dry on long walks and " +
      "grips wet rock.",
  },
  {
    words: ["sports", "politics", "markets"],
    text:
      "Shares fell on Thursday after the central bank raised interest rates for the third time this year and warned that " +
      "inflation would stay above its target. Banks lost most, while exporters gained from the weaker currency.",
  },
];

export async function makeExample(labels) {
  const totals = await Promise.all(TEXTS.map((text) => countMatches(text, labels)));
  const best = totals.indexOf(Math.max(...totals));
  return totals[best] > 0 ? TEXTS[best].text : fromLabels(labels);
}

async function countMatches({ words }, labels) {
  const results = await Promise.all(words.map((word) => labels.search(word)));
  return results.filter(({ total }) => total > 0).length;
}

async function fromLabels(labels) {
  const parts = [];
  let parent = null;
  do {
    const page = await labels.children(parent);
    const label = page.labels.find(({ children }) => children) ?? page.labels[0];
    parts.push(label.description ? `${label.name}: ${label.description}` : `${label.name}.`);
    parent = label.children ? label.id : null;
  } while (parent !== null);
  return parts.join(" ");
}
