// The data embedded in a page: JSON, compressed, in base64; empty if the page gets it from a server.
"use strict";

const EMBEDDED = document.getElementById("data").textContent;

async function unpack(text) {
  const bytes = atob(text), compressedBytes = new Uint8Array(bytes.length);
  for (let index = 0; index < bytes.length; index++) compressedBytes[index] = bytes.charCodeAt(index);
  const stream = new Blob([compressedBytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Call a function with the data; an error is shown on the page.
function openEmbedded(show) {
  unpack(EMBEDDED).then(show).catch((error) => {
    document.getElementById("opening").textContent = `The page could not be opened: ${error.message}`;
  });
}
