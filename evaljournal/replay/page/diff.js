// The words of two texts that differ.
"use strict";

const MAX_DIFF_CELLS = 9e6; // Words of one text × words of the other, without their common beginning and end: 3,000 each.
const WORD_WEIGHT = 32; // Common words count more than common whitespace.

const tokens = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];
const isBlank = (token) => !token.trim();

// Both texts in pieces, [text, is common], by the longest common subsequence of words; null if they are too long to compare.
function wordDifference(a, b) {
  const tokensA = tokens(a), tokensB = tokens(b);
  let begin = 0, endA = tokensA.length, endB = tokensB.length;
  while (begin < endA && begin < endB && tokensA[begin] === tokensB[begin]) begin += 1;
  while (endA > begin && endB > begin && tokensA[endA - 1] === tokensB[endB - 1]) { endA -= 1; endB -= 1; }
  const rows = endA - begin, columns = endB - begin;
  if (rows * columns > MAX_DIFF_CELLS) return null;
  const isCommonA = new Uint8Array(tokensA.length).fill(1), isCommonB = new Uint8Array(tokensB.length).fill(1);
  isCommonA.fill(0, begin, endA);
  isCommonB.fill(0, begin, endB);
  markCommon(tokensA.slice(begin, endA), tokensB.slice(begin, endB), (row, column) => { isCommonA[begin + row] = isCommonB[begin + column] = 1; });
  return [pieces(tokensA, isCommonA), pieces(tokensB, isCommonB)];
}

// Call `mark` with the indexes of each pair of words in the longest common subsequence.
function markCommon(a, b, mark) {
  const stride = b.length + 1, weights = new Uint32Array((a.length + 1) * stride); // Of the words from each pair of indexes on.
  const numbers = new Map(), numberOf = (token) => { if (!numbers.has(token)) numbers.set(token, numbers.size); return numbers.get(token); };
  const numbersA = Uint32Array.from(a, numberOf), numbersB = Uint32Array.from(b, numberOf);
  for (let row = a.length - 1; row >= 0; row--) {
    const token = numbersA[row], weight = isBlank(a[row]) ? 1 : WORD_WEIGHT;
    for (let column = b.length - 1, cell = row * stride + column; column >= 0; column--, cell--) {
      weights[cell] = token === numbersB[column] ? weights[cell + stride + 1] + weight : Math.max(weights[cell + stride], weights[cell + 1]);
    }
  }
  for (let row = 0, column = 0; row < a.length && column < b.length;) {
    const cell = row * stride + column;
    if (numbersA[row] === numbersB[column]) { mark(row, column); row += 1; column += 1; }
    else if (weights[cell + stride] >= weights[cell + 1]) row += 1;
    else column += 1;
  }
}

// Consecutive words of one kind as one piece; whitespace between two words that differ is part of the difference.
function pieces(words, isCommon) {
  const result = [];
  for (let index = 1; index + 1 < words.length; index++) if (isCommon[index] && isBlank(words[index]) && !isCommon[index - 1] && !isCommon[index + 1]) isCommon[index] = 0;
  for (let start = 0, end; start < words.length; start = end) {
    end = start;
    while (end < words.length && isCommon[end] === isCommon[start]) end += 1;
    result.push([words.slice(start, end).join(""), Boolean(isCommon[start])]);
  }
  return result;
}

// Both texts as nodes, in which the words are marked that the other text does not have; null if they are too long to compare.
function difference(a, b) {
  const nodes = (parts, kind) => parts.map(([text, isCommon]) => (isCommon ? escapeInvisible(text) : el("mark", { class: kind, text: escapeInvisible(text) })));
  const parts = wordDifference(a, b);
  return parts && [nodes(parts[0], "removed"), nodes(parts[1], "added")];
}
