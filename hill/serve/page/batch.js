// Labels for many texts: batch by batch, waiting where the server is busy, halving what it finds too much.

import { ApiError, post } from "./api.js";
import { pause } from "./dom.js";

const SIZE = 32;
const CHARACTERS = 200_000;
const PATIENCE = 30;
const TOO_MUCH = [413, 422, 504];

// Yields the places of some texts and, for each, a prediction or an ApiError.
export async function* predictAll(texts, settings, { signal, waiting }) {
  const filled = [...texts.keys()].filter((place) => texts[place].trim());
  for (const places of batches(filled, texts)) yield* part(places, texts, settings, { signal, waiting });
}

function* batches(places, texts) {
  let batch = [];
  let length = 0;
  for (const place of places) {
    if (batch.length === SIZE || (batch.length && length + texts[place].length > CHARACTERS)) {
      yield batch;
      [batch, length] = [[], 0];
    }
    batch.push(place);
    length += texts[place].length;
  }
  if (batch.length) yield batch;
}

async function* part(places, texts, settings, how) {
  try {
    const body = { texts: places.map((place) => texts[place]), ...settings };
    const { predictions } = await patient(body, how);
    yield { places, found: predictions };
  } catch (error) {
    if (!(error instanceof ApiError) || !TOO_MUCH.includes(error.status)) throw error;
    if (places.length === 1) return yield { places, found: [error] };
    const half = places.length >> 1;
    yield* part(places.slice(0, half), texts, settings, how);
    yield* part(places.slice(half), texts, settings, how);
  }
}

async function patient(body, { signal, waiting }) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await post("/v1/predict", body, signal);
    } catch (error) {
      if (error.status !== 503 || attempt === PATIENCE) throw error;
      waiting(error.wait);
      await pause(error.wait, signal);
    }
  }
}
