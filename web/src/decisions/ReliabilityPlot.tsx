import type { ReliabilityBin } from "../api/contract";
import { dotRadius } from "./figures";

const SIZE = 260;
const LEFT = 62;
const BELOW = 40;
const EDGE = 20;
const TICKS = [0, 0.25, 0.5, 0.75, 1];

const across = (share: number) => LEFT + SIZE * share;
const up = (share: number) => EDGE + SIZE * (1 - share);

/** The observed rate over the predicted chance; a larger dot is of more predictions. The table next to it has the numbers. */
export function ReliabilityPlot({ bins }: { bins: readonly ReliabilityBin[] }) {
  const most = Math.max(...bins.map(({ count }) => count), 1);
  return (
    <svg viewBox={`0 0 ${LEFT + SIZE + EDGE} ${EDGE + SIZE + BELOW}`} className="reliability-plot" aria-hidden="true" focusable="false">
      {TICKS.map((tick) => (
        <g key={tick}>
          <path d={`M${across(tick)} ${up(0)}V${up(1)}M${across(0)} ${up(tick)}H${across(1)}`} className="reliability-grid" />
          <text x={across(tick)} y={up(0) + 16} textAnchor="middle">
            {100 * tick} %
          </text>
          <text x={LEFT - 6} y={up(tick) + 4} textAnchor="end">
            {100 * tick} %
          </text>
        </g>
      ))}
      <path d={`M${across(0)} ${up(0)}L${across(1)} ${up(1)}`} className="reliability-diagonal" />
      {bins.map(({ low, predicted, rate_low, rate_high }) => (
        <path key={low} d={`M${across(predicted)} ${up(rate_low)}V${up(rate_high)}`} className="reliability-interval" />
      ))}
      {bins.map(({ low, predicted, rate, count }) => (
        <circle key={low} cx={across(predicted)} cy={up(rate)} r={dotRadius(count, most)} className="reliability-dot" />
      ))}
      <text x={across(0.5)} y={up(0) + 34} textAnchor="middle">
        predicted chance
      </text>
      <text transform={`translate(14 ${up(0.5)}) rotate(-90)`} textAnchor="middle">
        came true
      </text>
    </svg>
  );
}
